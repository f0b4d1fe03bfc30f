/** Built-in dialogues. Each ends in a choice of follow-ups: one that goes along, one that openly revises an earlier
 * requirement, and one that contradicts it without saying so. */

export const EXAMPLES = {
  en: [
    {
      id: "volcano",
      title: "A talk for ten-year-olds",
      turns: [
        {
          user: "I’m giving a short talk about volcanoes to my daughter’s class. They are ten years old 🌋. Could you draft the opening? No more than 120 words, please.",
          assistant:
            "Good morning! Who has ever shaken a bottle of lemonade and then opened it? Fizz everywhere, right? Deep under our feet there is rock so hot that it has melted, and it is full of gas, just like your lemonade. When the pressure gets too big — whoosh! — out it comes. Today we’ll find out why some volcanoes ooze like honey and others pop like a cork.",
        },
        {
          user: "Lovely. Add one thing that they can hold in their hands.",
          assistant:
            "“I’ve brought a piece of pumice. Pass it round. Feel how light it is? It is a stone that is mostly holes, and every hole was once a bubble of gas. It can even swim: we’ll put it in a bowl of water in a minute.”",
        },
      ],
      follow: {
        normal: "Could you also suggest three titles for the talk?",
        revision: "I’ve been given more time, so forget the 120 words: make it about 300 words instead.",
        conflict:
          "Then go on with how silica content controls melt viscosity and volatile exsolution in rhyolitic magma, with the terms a graduate seminar expects.",
      },
    },
    {
      id: "lisbon",
      title: "A day in Lisbon",
      turns: [
        {
          user: "Plan a Saturday in Lisbon for my mother and me. She uses a wheelchair, and we want to spend no more than 80 euros together.",
          assistant:
            "Morning: the riverside path from Cais do Sodré to the Terreiro do Paço, flat and free of steps. Midday: lunch at the Time Out Market, about 30 euros for two. Afternoon: the Gulbenkian garden and museum, with lifts on every floor, about 20 euros.",
        },
        {
          user: "That sounds good. What about the evening? We like it quiet.",
          assistant:
            "Take the accessible ferry terminal as your viewpoint for the sunset, then have soup and grilled fish in a small place in Alcântara with a level entrance. With a taxi home you stay just under 80 euros.",
        },
      ],
      follow: {
        normal: "What should we pack in case it rains?",
        revision: "Good news, my brother is chipping in: our budget is 150 euros now, not 80.",
        conflict:
          "For the afternoon, put in the spiral staircase to the top of Belém Tower for the two of us. The view is said to be the best in town.",
      },
    },
    {
      id: "photos",
      title: "A script for the museum",
      turns: [
        {
          user: "Write a Python script that renames the photos in a folder by the day they were taken. It will run on the museum’s archive computer, which isn’t connected to any network.",
          assistant:
            "Here is the plan: read the date from each file’s EXIF header with a small parser of our own, build a name such as 2024-05-17_001.jpg, and rename the file. It needs nothing but Python’s standard library.",
        },
        {
          user: "Good. Let it first print what it is going to do, and wait for a yes.",
          assistant:
            "Done: it lists every old and new name, asks “Rename these 42 files? [y/N]”, and stops unless you answer y.",
        },
      ],
      follow: {
        normal: "Please add a comment at the top that says how to start it.",
        revision: "I’ve changed my mind about the question: don’t wait for a yes any more, rename them at once.",
        conflict:
          "For photos with GPS coordinates, fetch the name of the place from OpenStreetMap while it runs and put it into the file name.",
      },
    },
  ],
  zh: [
    {
      id: "phone",
      title: "给外婆的手机说明",
      turns: [
        {
          user: "我外婆快八十了，刚拿到第一部智能手机📱。帮我写一份教她视频通话的说明，打印出来不超过一页。",
          assistant:
            "一、按一下手机右边的按钮，屏幕会亮。二、找到绿色的“微信”，用手指轻轻点一下。三、点一下小明的照片。四、点右下角的“＋”，再点“视频通话”。五、等一会儿，就能看到小明了。",
        },
        {
          user: "很好。再加上她听不清的时候该怎么办。",
          assistant: "六、听不清的时候，按手机左边上面那个长按钮，多按几下，声音就会变大。如果还是听不清，把手机靠近耳朵。",
        },
      ],
      follow: {
        normal: "再给这份说明起个亲切一点的标题吧。",
        revision: "篇幅改一下，不用限制在一页了，两页也可以。",
        conflict: "接着写怎么打开开发者选项，用 adb 命令清掉预装应用、调整 DPI，让通话更流畅。",
      },
    },
    {
      id: "anniversary",
      title: "校庆典礼主持词",
      turns: [
        {
          user: "帮我写一段百年校庆典礼的主持词，台下坐着各届老校友和来访的校长，第一段控制在两百字以内。",
          assistant:
            "尊敬的各位来宾、各位校友，亲爱的老师们、同学们：百年风雨，弦歌不辍。今天，我们怀着崇敬与感恩之情相聚于此，共同庆祝母校建校一百周年。一百年来，一代代师生薪火相传，以学报国。谨向莅临典礼的各位嘉宾致以最诚挚的欢迎！",
        },
        {
          user: "不错。接下来写介绍老校友代表上台的一段。",
          assistant:
            "七十年前，他从这里出发，把青春献给了祖国的桥梁事业；七十年后，他满头白发，重回母校的怀抱。让我们以热烈的掌声，有请一九五四届校友代表陈老先生！",
        },
      ],
      follow: {
        normal: "再写一段典礼结束时的致谢。",
        revision: "第一段的字数我想改一下，放宽到四百字。",
        conflict: "串场那几句多放点最近的网络热梗，来几个“家人们谁懂啊”，让大家刷刷弹幕笑一笑。",
      },
    },
    {
      id: "dinner",
      title: "一周的晚餐",
      turns: [
        {
          user: "我爸有高血压，医生让他吃清淡些。帮我安排一周的晚餐，每顿半小时内能做好。",
          assistant:
            "周一：清蒸鲈鱼、蒜蓉西兰花。周二：番茄豆腐汤、白灼生菜。周三：芹菜炒香干。周四：冬瓜虾仁。周五：菌菇鸡丝粥。周六：蒸蛋羹、凉拌木耳。周日：山药排骨汤。都少放盐，半小时内可以上桌。",
        },
        {
          user: "看着不错，周三那顿再加一个汤。",
          assistant: "周三：芹菜炒香干，加一碗紫菜豆腐汤，出锅前滴几滴香油，不必再放盐。",
        },
      ],
      follow: {
        normal: "顺便列一张这周的买菜清单。",
        revision: "时间上改一下，不用半小时内做好，一小时以内都行。",
        conflict: "周六那顿换成腊肉蒸咸鱼，再配一碟腌萝卜，他爱吃。",
      },
    },
  ],
};
